"""Still pictures of a timeline: as scene, SVG, PNG, text."""
