// The commands about weights: generate and export.

#include <json/value.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "command/commands.hpp"
#include "files/input_file.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/export.hpp"
#include "terminal/text_format.hpp"
#include "train/train_library_loader.hpp"

namespace sluice::cli {

namespace {

constexpr std::int64_t kByteVocabulary = 256;

// Shows the prompt, then each token as it arrives, and records the tokens for --json. The
// destructor ends the line, so that later output, an error included, begins on a new line. Confined
// to thread: the generating thread.
class TokenPrinter : public train::GenerateObserver {
 public:
  TokenPrinter(Console& console, std::string prompt, bool bytes)
      : console_(console), prompt_(std::move(prompt)), bytes_(bytes) {}
  ~TokenPrinter() override { end_line(); }
  TokenPrinter(const TokenPrinter&) = delete;
  TokenPrinter& operator=(const TokenPrinter&) = delete;

  void on_ready() override {
    console_.stream(prompt_);
    in_line_ = true;
  }
  void on_token(std::int64_t token) override {
    tokens_.append(Json::Int64(token));
    if (bytes_) text_ += static_cast<char>(token);
    console_.stream(bytes_ ? shown(static_cast<unsigned char>(token))
                           : " " + std::to_string(token));
  }
  void end_line() {
    if (in_line_) console_.stream("\n");
    in_line_ = false;
  }
  const Json::Value& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }

 private:
  // A terminal would execute control characters.
  std::string shown(unsigned char byte) const {
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    return {control && console_.terminal().is_terminal ? '?' : static_cast<char>(byte)};
  }

  Console& console_;
  const std::string prompt_;
  const bool bytes_;
  bool in_line_ = false;
  Json::Value tokens_ = Json::Value(Json::arrayValue);
  std::string text_;
};

}  // namespace

int run_generate(const GenerateArguments& arguments, Session& session) {
  const train::GenerateRequest& request = arguments.request;
  require_file("--model", request.model_path);
  const config::ModelConfig model = config::load_model_config(request.model_path);
  if (::access(request.weights_path.c_str(), R_OK) != 0) {
    throw InvalidArgument("--weights: " + request.weights_path +
                          ": there is no such file or run, or it cannot be read");
  }
  train::TrainLibrary& library = load_train_library();
  library.set_log_sink(session.console().make_log_sink(), LogLevel::info);

  const StopSignals signals;
  TokenPrinter printer(session.console(), request.prompt, model.vocab_size == kByteVocabulary);
  library.generate(request, printer, signals.stop());
  printer.end_line();

  Json::Value object(Json::objectValue);
  object["prompt"] = valid_utf8(request.prompt);
  object["tokens"] = printer.tokens();
  if (model.vocab_size == kByteVocabulary) object["text"] = valid_utf8(printer.text());
  session.emit(object);
  return signals.stop() == 0 ? kExitDone : exit_code_of_signal(signals.stop());
}

int run_export(const ExportArguments& arguments, Session& session) {
  Console& console = session.console();
  const StopSignals signals;
  const models::ExportResult result = models::export_weights(
      arguments.run_directory, arguments.out_path, {arguments.dtype, arguments.most_file_bytes},
      [&](std::uint64_t done, std::uint64_t total) {
        if (signals.stop() != 0)
          throw Interrupted(signals.stop());  // the writer removes its temporary file
        console.status("exporting: " + format_bytes(done) + " of " + format_bytes(total));
      });
  console.status("");
  const std::string shown =
      result.paths.size() == 1
          ? arguments.out_path
          : format_count(result.paths.size()) + " files and " + arguments.out_path + ".index.json";
  console.print("wrote " + shown + ": step " + std::to_string(result.step) + ", " +
                format_count(result.parameters) + " parameters in " + format_count(result.tensors) +
                " tensors as " + std::string(name_of(arguments.dtype)) + ", " +
                format_bytes(result.file_bytes));
  Json::Value object(Json::objectValue);
  object["out"] = valid_utf8(arguments.out_path);
  object["step"] = Json::Int64(result.step);
  object["tensors"] = Json::UInt64(result.tensors);
  object["parameters"] = Json::UInt64(result.parameters);
  object["file_bytes"] = Json::UInt64(result.file_bytes);
  object["files"] = Json::Value(Json::arrayValue);
  for (const std::string& path : result.paths) object["files"].append(valid_utf8(path));
  object["dtype"] = std::string(name_of(arguments.dtype));
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
