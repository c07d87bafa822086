"""Streams in Spark, cell by cell: append readings, ask questions about them, raise alarms as they come in."""

# %% A session that knows the format "penstock"
import os
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.pipeline.source import register

spark = SparkSession.builder.appName("readings").getOrCreate()
register(spark)
server = {
    "server": os.environ.get("PENSTOCK_SERVER_URL", "http://127.0.0.1:8080"),
    "tokenFile": os.environ.get("PENSTOCK_DATA_DIR", "penstock-data") + "/http-token",
}

# %% Append: each row of the column "payload" becomes a message
readings = spark.range(1000).select(
    (F.col("id") % 4).alias("sensor"),
    (F.col("id") / 10).alias("celsius"),
)
(
    readings.select(F.to_json(F.struct("sensor", "celsius")).alias("payload"))
    .write.format("penstock")
    .mode("append")
    .options(**server, stream="readings")
    .save()
)

# %% Read: messages have a number, a time of arrival and bytes; Spark SQL does the rest
reading = F.from_json(F.col("payload").cast("string"), "sensor LONG, celsius DOUBLE").alias("reading")

messages = spark.read.format("penstock").options(**server, stream="readings").load()
warmest = (
    messages.select("sequence_number", "arrival", reading)
    .groupBy("reading.sensor")
    .agg(F.count("*").alias("messages"), F.max("reading.celsius").alias("celsius"))
    .orderBy("sensor")
)
warmest.show()

# %% Follow: a stream query remembers in its checkpoint how far it has come
hot = (
    spark.readStream.format("penstock")
    .options(**server, stream="readings", maxMessagesPerTrigger=400)
    .load()
    .select("sequence_number", reading)
    .where("reading.celsius >= 95")
)
query = (
    hot.select(F.to_json(F.struct("sequence_number", "reading.*")).alias("payload"))
    .writeStream.format("penstock")
    .options(**server, stream="alarms")
    .option("checkpointLocation", tempfile.mkdtemp(prefix="alarms-"))
    .trigger(availableNow=True)  # leave this out to go on for ever
    .start()
)
query.awaitTermination()

# %% What has come of it
alarms = spark.read.format("penstock").options(**server, stream="alarms").load()
alarms.select("sequence_number", "arrival", F.col("payload").cast("string")).show(5, truncate=False)
