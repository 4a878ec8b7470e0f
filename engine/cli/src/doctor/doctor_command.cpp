// doctor: the probes as one table, or as one JSON object.

#include <json/value.h>

#include <algorithm>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "doctor/doctor.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

struct Section {
  std::string name;
  std::vector<DoctorRow> rows;
};

const char* state_text(DoctorState state) {
  switch (state) {
    case DoctorState::on:
      return "on";
    case DoctorState::off:
      return "off";
    case DoctorState::fact:
      return "";
  }
  return "";
}

// The sections share their columns, so that all rows line up.
std::string section_text(const std::vector<Section>& sections) {
  std::size_t width = 0;
  for (const Section& section : sections) {
    for (const DoctorRow& row : section.rows) width = std::max(width, display_width(row.name));
  }
  std::string text;
  for (const Section& section : sections) {
    text += (text.empty() ? "" : "\n") + section.name + "\n";
    for (const DoctorRow& row : section.rows) {
      const std::string state = state_text(row.state);
      text += "  " + row.name + std::string(width - display_width(row.name) + 2, ' ');
      text += state + std::string(5 - state.size(), ' ') + row.detail + "\n";
    }
  }
  return text;
}

std::string drive_kind(const DriveRow& drive) {
  if (!drive.rotational) return drive.model;
  const std::string kind = drive.virtual_drive ? "virtual"
                           : *drive.rotational ? "rotating"
                                               : "solid state";
  return drive.model.empty() ? kind : drive.model + ", " + kind;
}

std::string direct_cell(const DriveRow& drive) {
  if (drive.direct) return "on, " + format_bytes(drive.alignment_bytes) + " blocks";
  return drive.writable ? "off" : "not tried";
}

std::string drive_text(const std::vector<DriveRow>& drives) {
  if (drives.empty()) return "drives\n  no local file system was found\n";
  std::vector<std::vector<std::string>> rows = {
      {"mounted at", "type", "device", "free", "total", "O_DIRECT", "kind"}};
  std::string reasons;
  for (const DriveRow& drive : drives) {
    rows.push_back({drive.mount_point, drive.file_system, drive.device,
                    format_bytes(drive.free_bytes), format_bytes(drive.total_bytes),
                    direct_cell(drive), drive_kind(drive)});
    if (!drive.direct)
      reasons += "  " + drive.mount_point + ": O_DIRECT: " + drive.why_not_direct + "\n";
  }
  std::string text = "drives\n";
  const std::string table = format_table(rows);
  for (std::size_t at = 0; at < table.size();) {
    const std::size_t end = table.find('\n', at) + 1;
    text += "  " + table.substr(at, end - at);
    at = end;
  }
  return text + reasons;
}

Json::Value to_object(const DriveRow& drive) {
  Json::Value object(Json::objectValue);
  object["mount_point"] = valid_utf8(drive.mount_point);
  object["file_system"] = drive.file_system;
  object["device"] = valid_utf8(drive.device);
  object["model"] = drive.model.empty() ? Json::Value() : Json::Value(valid_utf8(drive.model));
  object["rotational"] = drive.rotational ? Json::Value(*drive.rotational) : Json::Value();
  object["virtual"] = drive.virtual_drive;
  object["total_bytes"] = Json::UInt64(drive.total_bytes);
  object["free_bytes"] = Json::UInt64(drive.free_bytes);
  object["o_direct"]["state"] = drive.direct ? "on" : drive.writable ? "off" : "not tried";
  if (drive.direct) object["o_direct"]["alignment_bytes"] = drive.alignment_bytes;
  if (!drive.direct) object["o_direct"]["why"] = valid_utf8(drive.why_not_direct);
  return object;
}

Json::Value to_object(const DoctorRow& row) {
  Json::Value object(Json::objectValue);
  if (row.state != DoctorState::fact) object["state"] = state_text(row.state);
  object["detail"] = valid_utf8(row.detail);
  for (const auto& [name, value] : row.numbers) object[name] = Json::UInt64(value);
  return object;
}

}  // namespace

int run_doctor(Session& session) {
  const std::vector<Section> sections = {{"machine", probe_cpu_and_memory()},
                                         {"devices", probe_devices()},
                                         {"libraries", probe_libraries()}};
  const std::vector<DriveRow> drives = probe_drives();
  session.console().print(section_text(sections) + "\n" + drive_text(drives));

  Json::Value object(Json::objectValue);
  for (const Section& section : sections) {
    for (const DoctorRow& row : section.rows) object[section.name][row.name] = to_object(row);
  }
  object["drives"] = Json::Value(Json::arrayValue);
  for (const DriveRow& drive : drives) object["drives"].append(to_object(drive));
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
