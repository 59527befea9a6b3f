"""Reading topics into Spark, in batches and streams."""
