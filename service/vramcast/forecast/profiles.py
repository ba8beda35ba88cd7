from vramcast.forecast.description import decode_profile, encode_profile, unpack_profile

__all__ = ["decode_profile", "encode_profile", "unpack_profile"]
