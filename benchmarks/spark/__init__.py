"""What the Spark data source costs, against Spark's own sources and sinks."""
