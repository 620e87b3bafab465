"""Pages of results: their blocks, drawn as HTML, Markdown and text of a terminal."""
