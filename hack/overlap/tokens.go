package main

import (
	"strings"

	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/scanner"
	"cuelang.org/go/cue/token"
)

// lexeme is one token and its text.
type lexeme struct {
	tok  token.Token
	text string
}

// piecesOf splits CUE into tokens and returns the compared parts: runs of tokens between parameter
// fields.
func piecesOf(source []byte) [][]string {
	var out [][]string
	for _, piece := range withoutParameters(scan(source)) {
		if words := wordsOf(piece); len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}

// scan returns the tokens of a CUE text without its comments.
func scan(source []byte) []lexeme {
	var out []lexeme
	var s scanner.Scanner
	s.Init(token.NewFile("", -1, len(source)), source, nil, 0)
	// depths is the number of open parentheses in each enclosing interpolation.
	var depths []int
	for {
		_, tok, lit := s.Scan()
		if tok == token.EOF {
			return out
		}
		last := len(depths) - 1
		switch tok {
		case token.INTERPOLATION:
			depths = append(depths, 0)
		case token.LPAREN:
			if last >= 0 {
				depths[last]++
			}
		case token.RPAREN:
			if last < 0 {
				break
			}
			if depths[last]--; depths[last] > 0 {
				break
			}
			rest := s.ResumeInterpolation()
			if strings.HasSuffix(rest, "(") {
				depths[last] = 0 // another expression of the text begins
			} else {
				depths = depths[:last]
			}
			out = append(out, lexeme{token.STRING, rest})
			continue
		}
		text := lit
		if tok == token.COMMA {
			text = ","
		} else if text == "" {
			text = tok.String()
		}
		out = append(out, lexeme{tok, text})
	}
}

// withoutParameters removes the fields called parameter and returns the runs of tokens between
// them.
func withoutParameters(tokens []lexeme) [][]lexeme {
	var out [][]lexeme
	from := 0
	for i := 0; i < len(tokens); i++ {
		if !startsParameter(tokens, i) {
			continue
		}
		out = append(out, tokens[from:i])
		depth := 0
	field:
		for ; i < len(tokens); i++ {
			switch tokens[i].tok {
			case token.LBRACE, token.LBRACK, token.LPAREN:
				depth++
			case token.RBRACE, token.RBRACK, token.RPAREN:
				if depth--; depth < 0 {
					break field // the end of the enclosing struct
				}
			case token.COMMA:
				if depth == 0 {
					i++
					break field
				}
			}
		}
		from = min(i, len(tokens))
		i--
	}
	return append(out, tokens[from:])
}

// startsParameter reports whether a field called parameter begins at index i.
func startsParameter(tokens []lexeme, i int) bool {
	if t := tokens[i]; t.text != "parameter" && t.text != `"parameter"` {
		return false
	}
	if i > 0 {
		switch tokens[i-1].tok {
		case token.COMMA, token.LBRACE, token.COLON: // a field may begin here
		default:
			return false
		}
	}
	i++
	if i < len(tokens) && (tokens[i].tok == token.OPTION || tokens[i].tok == token.NOT) {
		i++
	}
	return i < len(tokens) && tokens[i].tok == token.COLON
}

// wordsOf returns the texts of tokens, without commas before closing brackets. A text that is CUE
// is replaced by its own tokens.
func wordsOf(tokens []lexeme) []string {
	var out []string
	for i, t := range tokens {
		if t.tok == token.COMMA {
			if i+1 == len(tokens) {
				continue
			}
			switch tokens[i+1].tok {
			case token.RBRACE, token.RBRACK, token.RPAREN:
				continue
			}
		}
		if inner := embedded(t); inner != nil {
			for _, piece := range piecesOf(inner) {
				out = append(out, piece...)
			}
			continue
		}
		out = append(out, t.text)
	}
	return out
}

// embedded returns the content of a multi-line text that is CUE, or nil.
func embedded(t lexeme) []byte {
	if t.tok != token.STRING || !strings.Contains(t.text, `"""`) {
		return nil
	}
	text, err := literal.Unquote(t.text)
	if err != nil {
		return nil
	}
	if _, err := parser.ParseFile("", text); err != nil {
		return nil
	}
	return []byte(text)
}

// sequences returns all runs of n words in the pieces.
func sequences(pieces [][]string, n int) []string {
	var out []string
	for _, piece := range pieces {
		for i := 0; i+n <= len(piece); i++ {
			out = append(out, strings.Join(piece[i:i+n], "\x00"))
		}
	}
	return out
}
