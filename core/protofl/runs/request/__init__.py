"""What a user asks for: options as one types them, files of them, recipes."""
