// Keeps the versions of a message: each with all messages that followed it.
//
// The message that is shown has `versions`, a list in the order of their making. A version is a list of messages; null
// stands for the one that is shown. A message without other versions has no such list.

/**
 * Takes a message and all that follow it out of a conversation.
 *
 * @param {Object[]} messages of the conversation
 * @param {number} at where the message is
 * @returns {(Object[]|null)[]} the versions of the message that is put there next
 */
export function setAside(messages, at) {
  const taken = messages.splice(at);
  const versions = taken[0].versions ?? [null];
  delete taken[0].versions;
  // An answer that failed before its first word is no version.
  if (taken.length === 1 && taken[0].role === "assistant" && taken[0].content === "" && !taken[0].thinking) {
    return versions;
  }
  versions[versions.indexOf(null)] = taken;
  return [...versions, null];
}

/** Gives a new message the versions that were set aside for it. */
export function addVersions(message, versions) {
  if (versions.length > 1) message.versions = versions;
}

/** The number of the version that is shown, and how many there are. */
export function versionOf({ versions = [null] }) {
  return { number: versions.indexOf(null) + 1, count: versions.length };
}

/**
 * Shows another version of a message, with what followed it.
 *
 * @param {Object[]} messages of the conversation
 * @param {Object} message the one that is shown
 * @param {number} step 1 for the next version, -1 for the one before
 * @returns {Object|null} the message that is shown now; null where there is no such version
 */
export function switchVersion(messages, message, step) {
  const versions = message.versions ?? [null];
  const from = versions.indexOf(null);
  const to = from + step;
  if (to < 0 || to >= versions.length) return null;
  delete message.versions;
  versions[from] = messages.splice(messages.indexOf(message));
  messages.push(...versions[to]);
  const [shown] = versions[to];
  versions[to] = null;
  shown.versions = versions;
  return shown;
}
