'use strict';

// The life of a delivery stream on the port in argv. Prints one JSON object, for the test to judge.

const {
    CreateDeliveryStreamCommand, DeleteDeliveryStreamCommand, DescribeDeliveryStreamCommand, FirehoseClient,
    ListDeliveryStreamsCommand, ListTagsForDeliveryStreamCommand, PutRecordBatchCommand, PutRecordCommand,
    StartDeliveryStreamEncryptionCommand, StopDeliveryStreamEncryptionCommand, TagDeliveryStreamCommand,
    UntagDeliveryStreamCommand, UpdateDestinationCommand, ...sdk
} = require('@aws-sdk/client-firehose');

const MIB = 1024 * 1024;
const DeliveryStreamName = 'node';
const S3 = { RoleARN: 'arn:aws:iam::123456789012:role/delivery', BucketARN: 'arn:aws:s3:::bucket' };

function connect(credentials) {
    return new FirehoseClient({
        endpoint: `http://127.0.0.1:${process.argv[2]}`, region: 'eu-north-1', credentials, maxAttempts: 1,
    });
}

const client = connect({
    accessKeyId: process.env.AWS_ACCESS_KEY_ID,
    secretAccessKey: process.env.AWS_SECRET_ACCESS_KEY,
});

function send(Command, input = {}) {
    return client.send(new Command({ DeliveryStreamName, ...input }));
}

function records(count, sizeBytes, fill) {
    return Array.from({ length: count }, () => ({ Data: Buffer.alloc(sizeBytes, fill) }));
}

function batch(Records) {
    return send(PutRecordBatchCommand, { Records });
}

function counts({ FailedPutCount, RequestResponses, Encrypted }) {
    const ids = new Set(RequestResponses.map((entry) => entry.RecordId));
    return { failed: FailedPutCount, entries: RequestResponses.length, ids: ids.size, encrypted: Encrypted };
}

// The class of the error that comes, and what it says.
async function failure(promise) {
    const error = await promise.then(() => { throw new Error('no error came'); }, (e) => e);
    return {
        name: error.name,
        isOfItsClass: sdk[error.name] !== undefined && error instanceof sdk[error.name],
        isOfTheService: error instanceof sdk.FirehoseServiceException,
        message: error.message,
        status: error.$metadata && error.$metadata.httpStatusCode,
        hasRequestId: Boolean(error.$metadata && error.$metadata.requestId),
    };
}

async function describe() {
    return (await send(DescribeDeliveryStreamCommand)).DeliveryStreamDescription;
}

async function describeUntil(reached) {
    for (let polls = 0; polls < 100; polls += 1) {
        const shown = await describe();
        if (reached(shown)) {
            return shown;
        }
        await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
    throw new Error(JSON.stringify(await describe()));
}

function encryptionIs(status) {
    return (shown) => shown.DeliveryStreamEncryptionConfiguration.Status === status;
}

async function life(result) {
    const created = await send(CreateDeliveryStreamCommand, {
        ExtendedS3DestinationConfiguration: S3, Tags: [{ Key: 'a', Value: '1' }],
    });
    result.arn = created.DeliveryStreamARN;
    const shown = await describeUntil((description) => description.DeliveryStreamStatus === 'ACTIVE');
    result.createTimestampIsDate = shown.CreateTimestamp instanceof Date;
    result.age_ms = Date.now() - shown.CreateTimestamp.getTime();
    result.taken = await failure(send(CreateDeliveryStreamCommand, { ExtendedS3DestinationConfiguration: S3 }));

    result.single = await send(PutRecordCommand, { Record: { Data: new Uint8Array([0, 255, 10]) } });
    delete result.single.$metadata;
    result.five_hundred = counts(await batch(records(500, 10, 'a')));
    result.four_mib = counts(await batch([...records(4, 1024000, 'b'), ...records(1, 4 * MIB - 4096000, 'b')]));
    result.too_many = await failure(batch(records(501, 1, 'c')));
    result.too_large = await failure(batch(records(1, 1024001, 'c')));
    result.too_large_together = await failure(batch([...records(4, 1024000, 'c'), ...records(1, 98305, 'c')]));
    result.bad_name = await failure(send(PutRecordCommand, {
        DeliveryStreamName: 'a b', Record: { Data: Buffer.from('c') },
    }));

    await send(StartDeliveryStreamEncryptionCommand, {
        DeliveryStreamEncryptionConfigurationInput: { KeyType: 'AWS_OWNED_CMK' },
    });
    await describeUntil(encryptionIs('ENABLED'));
    result.sealed = counts(await batch(records(1, 1, 'd')));
    await send(StopDeliveryStreamEncryptionCommand);
    await describeUntil(encryptionIs('DISABLED'));
    result.no_such_key = await failure(send(StartDeliveryStreamEncryptionCommand, {
        DeliveryStreamEncryptionConfigurationInput: {
            KeyType: 'CUSTOMER_MANAGED_CMK', KeyARN: 'arn:aws:kms:eu-north-1:123456789012:key/none',
        },
    }));

    await send(TagDeliveryStreamCommand, { Tags: [{ Key: 'b' }, { Key: 'c', Value: 'ü' }] });
    await send(UntagDeliveryStreamCommand, { TagKeys: ['a'] });
    result.tags = (await send(ListTagsForDeliveryStreamCommand)).Tags;
    result.names = (await client.send(new ListDeliveryStreamsCommand({}))).DeliveryStreamNames;

    const update = {
        CurrentDeliveryStreamVersionId: shown.VersionId,
        DestinationId: shown.Destinations[0].DestinationId,
        ExtendedS3DestinationUpdate: { Prefix: 'p/' },
    };
    await send(UpdateDestinationCommand, update);
    result.updated = await describe();
    result.stale = await failure(send(UpdateDestinationCommand, update));
    result.two_destinations = await failure(send(CreateDeliveryStreamCommand, {
        DeliveryStreamName: 'two', ExtendedS3DestinationConfiguration: S3, S3DestinationConfiguration: S3,
    }));

    await send(DeleteDeliveryStreamCommand);
    for (let polls = 0; polls < 100 && !result.gone; polls += 1) {
        result.gone = await describe().then(() => undefined, (error) => failure(Promise.reject(error)));
        await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
    const stranger = connect({ accessKeyId: process.env.AWS_ACCESS_KEY_ID, secretAccessKey: 'wrong' });
    result.stranger = await failure(stranger.send(new ListDeliveryStreamsCommand({})));
    return result;
}

life({}).then(
    (result) => console.log(JSON.stringify(result)),
    (error) => {
        console.error(error);
        process.exitCode = 1;
    },
);
