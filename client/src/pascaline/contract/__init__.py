"""What this distribution shares with its peers: files of the contracts, each kept in one place and linked here."""
