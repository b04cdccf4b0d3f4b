"""Files and bytes of a timeline: Chrome, Perfetto, Parquet, the browser."""
