"""HTTP server: an API for every task, and APIs that existing clients speak (LibreTranslate, DeepL, OpenAI)."""
