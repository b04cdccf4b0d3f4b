"""The workflow graph as an SVG."""
