'use strict';

const {
    assert, definition, readOptions, rejects, run, sdk,
} = require('./scenario');

run(async (client) => {
    assert.deepEqual(await client.listStreams(), []);

    await client.createMessageStream(definition('js'));
    await rejects(
        client.createMessageStream(definition('js')),
        sdk.InvalidRequestException,
        /^the message stream already exists$/,
    );
    assert.deepEqual(await client.listStreams(), ['js']);

    const empty = await client.describeMessageStream('js');
    assert.equal(empty.storageStatus.oldestSequenceNumber, 0);
    assert.equal(empty.storageStatus.newestSequenceNumber, -1);
    assert.equal(empty.storageStatus.totalBytes, 0);
    assert.deepEqual(empty.exportStatuses, []);
    assert.equal(empty.definition.maxSize, 268435456);
    assert.equal(empty.definition.streamSegmentSize, 16777216);
    assert.equal(empty.definition.timeToLiveMillis, null);
    assert.equal(empty.definition.persistence, sdk.Persistence.File);
    assert.equal(empty.definition.flushOnWrite, false);
    assert.deepEqual(empty.definition.exportDefinition.IotSitewise, []);

    await rejects(client.readMessages('js'), sdk.NotEnoughMessagesException, /greater than the last sequence number/);
    for (let i = 0; i < 5; i += 1) {
        assert.equal(await client.appendMessage('js', Buffer.from(`m${i}`)), i);
    }
    const [first] = await client.readMessages('js');
    assert.equal(first.streamName, 'js');
    assert.equal(first.sequenceNumber, 0);
    assert.equal(first.payload.toString(), 'm0');
    assert.ok(Math.abs(first.ingestTime - Date.now()) < 60000);

    const two = await client.readMessages('js', readOptions({ minMessageCount: 2 }));
    assert.deepEqual(two.map((message) => message.payload.toString()), ['m0', 'm1']);
    const all = await client.readMessages('js', readOptions({ minMessageCount: 2, maxMessageCount: 100 }));
    assert.deepEqual(all.map((message) => message.sequenceNumber), [0, 1, 2, 3, 4]);
    const last = await client.readMessages('js', readOptions({ desiredStartSequenceNumber: 4 }));
    assert.deepEqual(last.map((message) => message.sequenceNumber), [4]);
    await rejects(
        client.readMessages('js', readOptions({ minMessageCount: 6, readTimeoutMillis: 200 })),
        sdk.NotEnoughMessagesException,
    );

    const large = Buffer.alloc(3 * 1024 * 1024, 7);
    const number = await client.appendMessage('js', large);
    const [back] = await client.readMessages('js', readOptions({ desiredStartSequenceNumber: number }));
    assert.ok(back.payload.equals(large));

    for (const call of [
        () => client.appendMessage('none', Buffer.from('x')),
        () => client.readMessages('none'),
        () => client.describeMessageStream('none'),
        () => client.updateMessageStream(definition('none')),
        () => client.deleteMessageStream('none'),
    ]) {
        await rejects(call(), sdk.ResourceNotFoundException);
    }

    await client.deleteMessageStream('js');
    await client.createMessageStream(definition('js'));
    assert.equal(await client.appendMessage('js', Buffer.from('again')), 0);
});
