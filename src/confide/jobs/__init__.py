"""What users do with text and with runs: one module for each job."""
