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

// piecesOf tokenises CUE and returns what is compared of it: runs of tokens between parameter fields.
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
	// depths are the numbers of open parentheses in the interpolations that the scanner is in.
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
				depths[last] = 0 // the text goes on with another expression
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

// withoutParameters cuts the fields called parameter out of the tokens, and returns what is between them.
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
					break field // the end of what the field is in
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

// wordsOf is the text of each token: without commas before closing brackets, and with the tokens of texts that are CUE
// in place of these texts.
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

// embedded is the content of a text of several lines that is CUE, or nil.
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

// sequences are all runs of n words in the pieces.
func sequences(pieces [][]string, n int) []string {
	var out []string
	for _, piece := range pieces {
		for i := 0; i+n <= len(piece); i++ {
			out = append(out, strings.Join(piece[i:i+n], "\x00"))
		}
	}
	return out
}
