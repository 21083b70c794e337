"""What inbox, outbox and spark stand on. Nothing in it is public: import from those packages."""
