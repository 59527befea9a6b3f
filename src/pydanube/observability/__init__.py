"""What the broker tells its operators: logs and metrics."""
