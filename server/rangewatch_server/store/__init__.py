"""The database: tables, engines, tiles, and the one writer."""
