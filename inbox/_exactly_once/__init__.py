"""The exactly-once path: the inbox row commits with the business writes."""
