'use strict';

// Says "ready", waits for the server to be restarted and for a line on stdin, and goes on with the same client.

const { once } = require('node:events');
const {
    assert, definition, readOptions, run,
} = require('./scenario');

run(async (client) => {
    await client.createMessageStream(definition('restarting'));
    assert.equal(await client.appendMessage('restarting', Buffer.from('before')), 0);
    console.log('ready');
    await once(process.stdin, 'data');
    assert.equal(await client.appendMessage('restarting', Buffer.from('after')), 1);
    const messages = await client.readMessages('restarting', readOptions({ minMessageCount: 2 }));
    assert.deepEqual(messages.map((message) => message.payload.toString()), ['before', 'after']);
});
