def is_plugins(error: BaseException) -> bool:
    return not isinstance(error, KeyboardInterrupt)
