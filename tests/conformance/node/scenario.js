'use strict';

// Connects the SDK to the port in argv, runs the scenario, and ends the process with its outcome.

const assert = require('node:assert/strict');
const sdk = require('aws-greengrass-core-sdk/stream-manager');

const silent = { debug() {}, info() {}, warn() {}, error() {} };

function connect(port) {
    return new Promise((resolve, reject) => {
        const client = new sdk.StreamManagerClient({
            port,
            logger: silent,
            onConnectCb: () => resolve(client),
            onErrorCb: reject,
        });
    });
}

function definition(name, fields = {}) {
    const result = new sdk.MessageStreamDefinition()
        .withName(name)
        .withStrategyOnFull(sdk.StrategyOnFull.RejectNewData);
    return Object.assign(result, fields);
}

function readOptions(fields) {
    return Object.assign(new sdk.ReadMessagesOptions(), fields);
}

async function rejects(promise, exception, text = /./) {
    const error = await promise.then(() => assert.fail('no error came'), (e) => e);
    assert.equal(error.constructor.name, exception.name, error.stack);
    assert.match(error.message, text);
}

function run(body) {
    const port = Number(process.argv[2]);
    connect(port).then(body).then(
        () => process.exit(0),
        (error) => {
            console.error(error);
            process.exit(1);
        },
    );
}

module.exports = {
    assert, connect, definition, readOptions, rejects, run, sdk,
};
