"""The dashboard server: takes, keeps and shows what the agents send."""
