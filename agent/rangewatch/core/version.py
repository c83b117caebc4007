"""The version, which agent, wire and server share."""

VERSION = "0.1.0"
