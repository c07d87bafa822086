'use strict';

const {
    assert, definition, readOptions, rejects, run, sdk,
} = require('./scenario');

run(async (client) => {
    const small = { maxSize: 65536, streamSegmentSize: 16384 };

    await client.createMessageStream(definition('reject', small));
    let count = 0;
    await rejects((async () => {
        for (; count < 70; count += 1) {
            await client.appendMessage('reject', Buffer.alloc(1000));
        }
    })(), sdk.InvalidRequestException, /full/);
    assert.ok(count > 40);
    const kept = await client.readMessages('reject', readOptions({ minMessageCount: count }));
    assert.equal(kept.length, count);
    await rejects(client.appendMessage('reject', Buffer.alloc(70000)), sdk.RequestPayloadTooLargeException);

    await client.createMessageStream(definition('overwrite', {
        ...small,
        strategyOnFull: sdk.StrategyOnFull.OverwriteOldestData,
        persistence: sdk.Persistence.Memory,
        flushOnWrite: true,
        timeToLiveMillis: 60000,
    }));
    for (let i = 0; i < 150; i += 1) {
        assert.equal(await client.appendMessage('overwrite', Buffer.alloc(1000, i)), i);
    }
    const info = await client.describeMessageStream('overwrite');
    assert.ok(info.storageStatus.oldestSequenceNumber > 0);
    assert.equal(info.storageStatus.newestSequenceNumber, 149);
    assert.equal(info.definition.persistence, sdk.Persistence.Memory);
    assert.equal(info.definition.flushOnWrite, true);
    assert.equal(info.definition.timeToLiveMillis, 60000);
    const [oldest] = await client.readMessages('overwrite');
    assert.equal(oldest.sequenceNumber, info.storageStatus.oldestSequenceNumber);

    await client.createMessageStream(definition('largest exact', { maxSize: Number.MAX_SAFE_INTEGER }));
    const exact = await client.describeMessageStream('largest exact');
    assert.equal(exact.definition.maxSize, Number.MAX_SAFE_INTEGER);

    // Larger numbers leave node-cbor as floats; describing this stream would break this client.
    await client.createMessageStream(definition('float', { maxSize: 2 ** 63 }));
    assert.equal(await client.appendMessage('float', Buffer.from('x')), 0);
});
