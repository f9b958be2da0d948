"""Windows that pages are looked at in, in CSS pixels."""

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 800}
