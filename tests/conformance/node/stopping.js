'use strict';

// Says "waiting" when a read waits at the server, which is then stopped: the promise must settle.

const {
    definition, readOptions, rejects, run, sdk,
} = require('./scenario');

run(async (client) => {
    await client.createMessageStream(definition('stopping'));
    const waiting = client.readMessages('stopping', readOptions({ readTimeoutMillis: 60000 }));
    const expectation = rejects(waiting, sdk.NotEnoughMessagesException);
    await client.listStreams(); // requests of one connection arrive in order
    console.log('waiting');
    await expectation;
});
