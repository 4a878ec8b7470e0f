#pragma once
// Stripe: the directories over which a store's files are striped. Each has a label,
// DIR/stripe.json: all directories in order, their weights, which of them this one is, and whether
// a commit exists. A store in one directory has no label. The manifest and the labels have the same
// store_id.
//
// The drive of a part may be unmounted, so an absent file never means that a part is not needed. A
// part with committed bytes is given up only where the store's first directory is there without a
// manifest, or on request.
//
// Thread-safe: free functions without state.

#include <optional>
#include <string>
#include <vector>

#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/swap_place.hpp"
#include "swap/manifest.hpp"

namespace sluice::offload {

inline constexpr std::size_t kMaxParts = 64;

struct Stripe {
  std::string store_id;  // empty: in one directory
  std::vector<std::string> directories;
  nvme::StripeLayout layout;

  const std::string& first() const { return directories.front(); }
  bool striped() const { return !store_id.empty(); }
};

// The stripe of the committed store of `manifest`, whose first directory is that of `place`. To
// continue, the directories of `place` are used, because drives may be mounted elsewhere by now. To
// read, each further part is in any directory of `place`, or else where the label says.
// Throws StorageError when the labels are not those of this store in this order, and when the first
// directory is a copy of one that is there, to which the other parts belong.
Stripe stripe_of_committed(const SwapPlace& place, const Manifest& manifest);
Stripe stripe_to_read(const SwapPlace& place, const Manifest& manifest);
// A line in the log where the first directory is another than when the labels were written: who
// reads the parts that they name, and not the configuration's, may have meant others.
void warn_if_moved(const Stripe& stripe);

// Writes the labels of the store whose first directory is that of `place` anew, with a line in the
// log, where parts lie in other directories of `place` than they say. Does nothing for a copy, and
// where a part is in neither. Throws IoError.
void follow_moved_parts(const SwapPlace& place);

enum class LabelState { new_store, committed };
// Writes the labels, none for a store in one directory. Throws IoError.
void write_labels(const Stripe& stripe, LabelState state);

// Throws StorageError that says why `directory` may not be taken for a new store whose first
// directory is `new_first`: it has a part of another store; and when a label cannot be used.
void check_is_nobodys_part(const std::string& directory, const std::string& new_first);
// Like check_is_nobodys_part(), but only where the store's first directory is there and committed,
// also under the name of another part; otherwise the part may be given up.
void check_is_no_part_of_a_run_that_is_there(const std::string& directory);
// Throws StorageError naming the first directory when this one is a further one of a store that is
// committed.
void check_is_no_further_part(const std::string& directory);

// The directories that hold files of the store whose first directory is `directory`, which comes
// last: its label names the others. Directories that are absent or belong to another store go to
// `missing` instead. For a further directory: that directory alone. Throws StorageError for a copy.
std::vector<std::string> directories_to_clear(const std::string& directory,
                                              std::vector<std::string>& missing);

}  // namespace sluice::offload
