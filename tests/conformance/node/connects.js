'use strict';

const { run } = require('./scenario');

run((client) => client.listStreams());
