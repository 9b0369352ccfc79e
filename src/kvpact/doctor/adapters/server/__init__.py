"""An engine behind a URL: OpenAI-compatible servers, and llama.cpp's own interface."""
