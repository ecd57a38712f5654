"""Runs over real sites at the lead, the server and the sites, whatever the engine."""
