"""The foundation of inbox, outbox and spark. Nothing in it is public: import from those packages."""
