"""Topics as tables: Delta and Iceberg tables that hold what a topic holds, each message once."""
