// Numbers, times and lists of ranks as people read them.

export const known = (value) => value !== null && value !== undefined;

export const percent = (share) => `${Math.round(100 * share)} %`;

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${significant(number)} ${units[unit]}`;
}

// `61 of 141 GB`; the total may be unknown.
export function bytesOf(used, total) {
  if (!total) return bytes(used);
  const [usedWords, totalWords] = [bytes(used).split(" "), bytes(total).split(" ")];
  return usedWords[1] === totalWords[1] ? `${usedWords[0]} of ${totalWords.join(" ")}` : `${usedWords.join(" ")} of ${totalWords.join(" ")}`;
}

export function significant(number) {
  if (number === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(number))));
  return number.toFixed(Math.min(digits, 4)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

export const clock = (epoch) => new Date(1000 * epoch).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const moment = (epoch) => {
  const then = new Date(1000 * epoch);
  const isToday = then.toDateString() === new Date().toDateString();
  return isToday ? clock(epoch) : `${then.toLocaleDateString([], { month: "short", day: "numeric", year: "numeric" })}, ${clock(epoch)}`;
};

// Short times in milliseconds or seconds, long ones as a clock shows them.
export function seconds(number) {
  if (number < 0.0995) return `${Math.round(1000 * number)} ms`;
  return number < 59.5 ? `${number < 9.95 ? number.toFixed(1) : Math.round(number)} s` : duration(number);
}

export function ranks(numbers) {
  const parts = [];
  for (let at = 0; at < numbers.length; ) {
    let last = at;
    while (last + 1 < numbers.length && numbers[last + 1] === numbers[last] + 1) last += 1;
    parts.push(last > at + 1 ? `${numbers[at]}–${numbers[last]}` : numbers.slice(at, last + 1).join(", "));
    at = last + 1;
  }
  return (numbers.length === 1 ? "rank " : "ranks ") + parts.join(", ");
}
