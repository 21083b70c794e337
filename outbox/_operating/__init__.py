"""The operators' functions: inspecting messages, and acting on them."""
