'use strict';

const {
    assert, connect, definition, readOptions, rejects, run, sdk,
} = require('./scenario');

run(async (client) => {
    await client.createMessageStream(definition('overlap'));

    const waiting = client.readMessages('overlap', readOptions({ minMessageCount: 100, readTimeoutMillis: 30000 }));
    const numbers = await Promise.all(
        [...Array(100).keys()].map((i) => client.appendMessage('overlap', Buffer.from(`m${i}`))),
    );
    assert.deepEqual(numbers, [...Array(100).keys()]);
    const messages = await waiting;
    assert.deepEqual(messages.map((message) => message.payload.toString()), numbers.map((i) => `m${i}`));

    const started = Date.now();
    const outcomes = await Promise.allSettled([
        client.readMessages('overlap', readOptions({ desiredStartSequenceNumber: 100, readTimeoutMillis: 700 })),
        client.readMessages('overlap', readOptions({ desiredStartSequenceNumber: 100, readTimeoutMillis: 300 })),
        client.listStreams(),
    ]);
    assert.deepEqual(outcomes.map((outcome) => outcome.status), ['rejected', 'rejected', 'fulfilled']);
    assert.ok(Date.now() - started < 5000);

    const doomed = client.readMessages('overlap', readOptions({ desiredStartSequenceNumber: 100, readTimeoutMillis: 30000 }));
    const expectation = rejects(doomed, sdk.ResourceNotFoundException);
    await client.deleteMessageStream('overlap');
    await expectation;

    const response = await client._sendAndReceive(sdk.Operation.Unknown, new sdk.ListStreamsRequest());
    assert.equal(response.status, sdk.ResponseStatusCode.UnknownOperation);
    assert.ok(response instanceof sdk.UnknownOperationError);

    const second = await connect(client.port);
    assert.deepEqual(await second.listStreams(), []);
    second.close();
    assert.deepEqual(await client.listStreams(), []);
});
