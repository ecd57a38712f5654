"""Run folders -> tables for the terminal and one self-contained HTML page.

This room reads only what runs wrote: result.json, ledger.jsonl, settings.toml, environment.json
and, if a site left them, its own errors and counts; of a run that goes on, its newest checkpoint.
It never opens a model. The one page about files of a user's is `confide.report.review`.
"""
