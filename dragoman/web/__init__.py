"""Self-contained HTML pages: one style sheet, small ES modules, and a builder that puts them into one file."""
