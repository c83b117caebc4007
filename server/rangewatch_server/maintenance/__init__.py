"""What is done to stored runs: retention, deletion, backup and restore, as short jobs in the writer's thread."""
