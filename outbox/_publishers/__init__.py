"""Publishers: one for each broker, a router over several, and direct delivery to inboxes."""
