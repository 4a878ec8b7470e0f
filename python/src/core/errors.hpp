#pragma once
// Exceptions of Sluice as exceptions of Python. Confined to thread: one that holds the GIL.

namespace sluice::python {

// From here on, an exception that leaves a function of the module becomes:
// - InvalidArgument: ValueError; config::ConfigError: sluice.config.ConfigError;
// - IoError: OSError, or its subclass for the errno; OutOfMemory: MemoryError;
// - DoesNotFit, StorageError, any other Error: the class of this name in sluice;
// - Interrupted: KeyboardInterrupt.
// The classes of Sluice's own are in sluice/_errors.py.
void translate_errors();

}  // namespace sluice::python
