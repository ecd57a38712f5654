"""What a run over real sites does at the lead, the server and the sites, whatever the engine."""
