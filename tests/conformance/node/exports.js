'use strict';

const {
    assert, definition, rejects, run, sdk,
} = require('./scenario');

const common = {
    batchIntervalMillis: 60000, priority: 3, startSequenceNumber: 0, disabled: true,
};

function allExports(statusStreamName) {
    return new sdk.ExportDefinition()
        .withHttp([Object.assign(new sdk.HTTPConfig(), common, {
            identifier: 'http-1', uri: 'http://127.0.0.1:1/x', batchSize: 500, exportFormat: sdk.ExportFormat.JSON_BATCHED,
        })])
        .withIotAnalytics([Object.assign(new sdk.IoTAnalyticsConfig(), common, {
            identifier: 'analytics-1', iotChannel: 'c', iotMsgIdPrefix: 'p', batchSize: 100,
        })])
        .withKinesis([Object.assign(new sdk.KinesisConfig(), common, {
            identifier: 'kinesis-1', kinesisStreamName: 'k', batchSize: 500,
        })])
        .withIotSitewise([Object.assign(new sdk.IoTSiteWiseConfig(), common, {
            identifier: 'sitewise-1', batchSize: 10,
        })])
        .withS3TaskExecutor([Object.assign(new sdk.S3ExportTaskExecutorConfig(), {
            identifier: 's3-1',
            sizeThresholdForMultipartUploadBytes: 5242880,
            priority: 1,
            disabled: true,
            statusConfig: new sdk.StatusConfig()
                .withStatusLevel(sdk.StatusLevel.TRACE)
                .withStatusStreamName(statusStreamName),
        })]);
}

run(async (client) => {
    await client.createMessageStream(definition('status'));
    const exports = allExports('status');
    await client.createMessageStream(definition('all', { exportDefinition: exports }));
    await client.appendMessage('all', Buffer.from('x'));

    const before = await client.describeMessageStream('all');
    assert.deepEqual(before.definition.exportDefinition.asMap(), exports.asMap());
    assert.deepEqual(
        before.exportStatuses.map((status) => status.exportConfigIdentifier),
        ['http-1', 'analytics-1', 'kinesis-1', 'sitewise-1', 's3-1'],
    );
    for (const status of before.exportStatuses) {
        assert.equal(status.lastExportedSequenceNumber, -1);
        assert.equal(status.lastExportTime, 0);
        assert.equal(status.errorMessage, '');
        assert.equal(status.exportedBytesFromStream, 0);
        assert.equal(status.exportedMessagesCount, 0);
    }

    await client.updateMessageStream(before.definition);
    const after = await client.describeMessageStream('all');
    assert.deepEqual(after.asMap(), before.asMap());

    const edited = after.definition;
    edited.exportDefinition.kinesis = [];
    edited.exportDefinition.http[0].batchSize = 3;
    await client.updateMessageStream(edited);
    const changed = await client.describeMessageStream('all');
    assert.deepEqual(changed.definition.asMap(), edited.asMap());
    assert.equal(changed.exportStatuses.length, 4);

    await rejects(
        client.updateMessageStream(definition('all', { persistence: sdk.Persistence.Memory })),
        sdk.UpdateNotAllowedException,
    );
});
