#pragma once
// Stripe: the directories that a store's files are striped over, and the label in each of them that
// says so: DIR/stripe.json, with all directories in order, their weights, which of them this one
// is, and whether anything has been committed. A store in one directory has no label. The manifest
// names the store by the same number as its labels.
//
// Parts are on drives that may not be mounted, so what is needed is never concluded from what is
// absent: a part of which something was committed is given up only where the store's first
// directory is there and says that it has no manifest, or on request.
//
// Thread-safe: free functions without state.

#include <optional>
#include <string>
#include <vector>

#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/swap_place.hpp"
#include "swap/manifest.hpp"

namespace sluice::offload {

struct Stripe {
  std::string store_id;  // empty: in one directory
  std::vector<std::string> directories;
  nvme::StripeLayout layout;

  const std::string& first() const { return directories.front(); }
  bool striped() const { return !store_id.empty(); }
};

// Of a new store, with a number of its own. Throws InvalidArgument when a directory is named twice
// or the weights are not as many.
Stripe new_stripe(const SwapPlace& place);

// Of what `manifest` says is committed in `directory`. For going on at `place` its directories
// count, since drives may be mounted elsewhere by now. Throws StorageError when the labels are not
// those of this store, in this order, or `place` is a copy of the first directory, to which the
// other parts do not belong.
Stripe stripe_of_committed(const std::string& directory, const Manifest& manifest);
Stripe stripe_of_committed(const SwapPlace& place, const Manifest& manifest);

enum class LabelState { new_store, committed };
// Writes the labels, none for a store in one directory. Throws IoError.
void write_labels(const Stripe& stripe, LabelState state);

// Throws StorageError that says why `directory` may not be taken for a new store whose first
// directory is `new_first`: it has a part of another store; and when a label cannot be used.
void check_is_nobodys_part(const std::string& directory, const std::string& new_first);
// The same only where the store's first directory is there and committed: else the part may be
// given up.
void check_is_no_part_of_a_run_that_is_there(const std::string& directory);
// Throws StorageError naming the first directory when this one is a further one of a store that is
// committed.
void check_is_no_further_part(const std::string& directory);

// The directories that a store with its first in `directory` has left its files in, `directory`
// itself last: its label tells of the others. Of those only the ones that are there and are its
// own; `missing` gets the others. A further directory alone is itself. Throws StorageError for a
// copy.
std::vector<std::string> directories_to_clear(const std::string& directory,
                                              std::vector<std::string>& missing);

}  // namespace sluice::offload
