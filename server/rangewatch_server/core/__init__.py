"""What every room may use: errors with their codes, time limits of reads, logs, the server's own metrics."""
