"""The bash completion of `muster`: no process is started at a TAB, except awk for host names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from muster.cli.command_table import CommandWords, Value, torchrun_words

HOST_NAMES = r"""for file in muster.toml pyproject.toml "${XDG_CONFIG_HOME:-$HOME/.config}/muster/config.toml"; do
    [ -f "$file" ] && awk '/^[[]/ { group = ($0 ~ /^[[](tool[.]muster[.])?hosts[]]/) }
      group && /^[A-Za-z0-9_."-]+ *=/ { sub(/ *=.*/, ""); gsub(/"/, ""); print "@" $0 }' "$file" 2>/dev/null
  done
  awk 'tolower($1) == "host" { for (i = 2; i <= NF; i++) if ($i !~ /[*?!]/) print $i }' \
    "$HOME/.ssh/config" 2>/dev/null"""
"""Shell commands that print host groups of the configuration files and the hosts of ~/.ssh/config."""

_SCRIPT = r"""# bash completion for muster, written by `muster completion bash`

_muster_hosts() {
  %(hosts)s
}

# Job ids and job names: 20261116-101500-baseline-3f9a and baseline.
_muster_jobs() {
  local job
  for job in "${XDG_STATE_HOME:-$HOME/.local/state}"/muster/jobs/*/; do
    job=${job%%/} job=${job##*/}
    [[ $job == *[^A-Za-z0-9_-]* ]] && continue
    printf '%%s\n' "$job"
    job=${job#*-*-}
    printf '%%s\n' "${job%%-*}"
  done
  echo last
}

# Sets `kind` to what follows option $2 of command $1: flag, text, files, directories, hosts, job, or words to choose.
_muster_kind() {
  case "$1:$2" in
%(kinds)s
    *) kind=flag ;;
  esac
}

# Sets `options`, `first` (what the first argument is) and `subcommands` of command $1.
_muster_command() {
  options= first= subcommands=
  case "$1" in
%(commands)s
  esac
}

# Adds the candidates of kind $1 that begin with $2, each with $3 before it.
_muster_add() {
  local one typed=$2 prefix=$3
  [[ $1 == hosts && $2 == *,* ]] && prefix=$3${2%%,*}, typed=${2##*,}
  while IFS= read -r one; do
    [[ -n $one && $one == "$typed"* ]] && COMPREPLY+=("$prefix$one")
  done < <(
    case "$1" in
      (flag | text) ;;
      (files) compgen -f -- "$typed" ;;
      (directories) compgen -d -- "$typed" ;;
      (script) compgen -f -X '!*.py' -- "$typed"; compgen -d -- "$typed" ;;
      (job) _muster_jobs ;;
      (hosts) _muster_hosts ;;
      (*) set -f; printf '%%s\n' $1 ;;
    esac
  )
  case "$1" in
    files | directories | script) compopt -o filenames 2>/dev/null ;;
    hosts) compopt -o nospace 2>/dev/null ;;
  esac
}

_muster() {
  local line=${COMP_LINE:0:COMP_POINT} words cur command options first subcommands kind value script i
  COMPREPLY=()
  read -ra words <<< "$line"
  cur=
  if [[ $line != *[[:space:]] ]]; then
    cur=${words[${#words[@]}-1]}
    unset "words[${#words[@]}-1]"
  fi
  if (( ${#words[@]} < 2 )); then
    _muster_add "%(names)s --help --version" "$cur" ""
  else
    command=${words[1]} i=2
    _muster_command "$command"
    if [[ -n $subcommands && ${#words[@]} -gt 2 ]]; then
      command="$command ${words[2]}" i=3
      _muster_command "$command"
    fi
    # What stands before the word that is completed: an option that needs a value, or the first argument.
    value= script=
    while (( i < ${#words[@]} )); do
      if [[ -n $value ]]; then
        value=
      elif [[ ${words[i]} == -*=* ]]; then
        :
      elif [[ ${words[i]} == -* ]]; then
        _muster_kind "$command" "${words[i]}"
        [[ $kind == flag ]] || value=$kind
      elif [[ $first == script && ${words[i]##*/} == torchrun ]]; then
        command=torchrun
        _muster_command torchrun
      elif [[ $first == script ]]; then
        first=files script=yes
        break
      else
        first=
      fi
      (( i += 1 ))
    done
    if [[ -n $value ]]; then
      _muster_add "$value" "$cur" ""
    elif [[ $cur == --*=* ]]; then
      _muster_kind "$command" "${cur%%%%=*}"
      _muster_add "$kind" "${cur#*=}" "${cur%%%%=*}="
    elif [[ $cur == -* && -z $script ]]; then
      _muster_add "$options" "$cur" ""
    else
      [[ -z $subcommands ]] || _muster_add "$subcommands" "$cur" ""
      [[ -z $first ]] || _muster_add "$first" "$cur" ""
    fi
  fi
  # readline replaces only what follows the last of its break characters, such as =; @ belongs to what it replaces.
  local last=${COMP_WORDS[COMP_CWORD]} typed
  [[ $last == *[!@=:]* ]] || last=
  typed=${cur%%"$last"} typed=${typed%%@}
  for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$typed"}; done
}

complete -F _muster muster
"""


def bash_script(table: Sequence[CommandWords]) -> str:
    """The completion script for bash 3.2 and later."""
    known = [*table, torchrun_words()]
    return _SCRIPT % {
        "hosts": HOST_NAMES,
        "kinds": "\n".join(_kinds(known)),
        "commands": "\n".join(_commands(known)),
        "names": " ".join(command.words[0] for command in table if len(command.words) == 1),
    }


def _kinds(table: Sequence[CommandWords]) -> Iterator[str]:
    """One line for each kind of value, with all options that have it."""
    by_kind: dict[str, list[str]] = {}
    for command in table:
        for option in command.options:
            if option.value.kind != "flag":
                name = " ".join(command.words)
                by_kind.setdefault(_word(option.value), []).extend(f'"{name}:{each}"' for each in option.names)
    for kind, options in by_kind.items():
        yield f"    {' | '.join(options)}) kind={_quoted(kind)} ;;"


def _commands(table: Sequence[CommandWords]) -> Iterator[str]:
    for command in table:
        options = " ".join(name for option in command.options for name in option.names)
        parts = [f"options={_quoted(options)}"]
        if command.arguments:
            parts.append(f"first={_quoted(_word(command.arguments[0]))}")
        if command.subcommands:
            parts.append(f"subcommands={_quoted(' '.join(command.subcommands))}")
        yield f'    "{" ".join(command.words)}") {" ".join(parts)} ;;'


def _word(value: Value) -> str:
    return " ".join(value.choices) if value.kind == "choices" else value.kind


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
