"""Files and bytes of a timeline: Chrome traces (Perfetto opens them), Parquet, the browser."""
