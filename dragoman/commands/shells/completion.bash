# Completion of dragoman for bash 4.4 and newer. In ~/.bashrc:  eval "$(dragoman completion bash)"
_dragoman_completion() {
    local line=${COMP_LINE:0:COMP_POINT} word prefix='' character value
    word=${line##*[[:space:]]}
    # bash takes what follows = and : for a word of its own, so that the values must not repeat what stands before.
    for character in = :; do
        if [[ $COMP_WORDBREAKS == *"$character"* && $word == *"$character"* ]]; then
            value=${word%"${word##*"$character"}"}
            ((${#value} > ${#prefix})) && prefix=$value
        fi
    done
    COMPREPLY=()
    while IFS=$'\t' read -r value _; do
        [[ $value ]] && COMPREPLY+=("${value#"$prefix"}")
    done < <(DRAGOMAN_COMPLETE=$line "${COMP_WORDS[0]/#\~/$HOME}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace
    fi
}
complete -o default -o nosort -F _dragoman_completion dragoman
