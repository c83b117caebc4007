"""What is sent to a server, by how many ranks, pages and peers."""
